"""Arguments of a call: their structure, names, and the fake tensors that stand for them."""
