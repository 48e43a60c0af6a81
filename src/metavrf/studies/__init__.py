"""The paper's tables and figures as code that calls the rest."""
