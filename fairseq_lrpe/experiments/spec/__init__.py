"""What a YAML of configs means: experiments, runs, tables and kinds."""
