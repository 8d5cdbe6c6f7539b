"""What runs fairseq's commands and shows their results; it never imports the models."""
