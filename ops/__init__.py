"""Op facts: what is known of every operator, declared once."""
