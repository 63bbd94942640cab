"""What metadata and files say about a table: statistics, history, explanations, the doctor. Nothing is changed here."""
