"""The page to draw on and the HTTP interface: thin; it holds tasks and calls the learners."""
