"""Reads run folders and draws what people look at: the report, the comparison, the overview picture."""
