"""The commands of the shell, a dataclass each: thin, they read their options and call the package."""
