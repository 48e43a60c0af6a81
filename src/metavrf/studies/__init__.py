"""The paper's tables and figures, and ours, as data: what is trained, how it is tested, where it goes in the report."""
