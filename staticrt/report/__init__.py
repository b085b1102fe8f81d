"""What a user can see of a compiled callable."""
