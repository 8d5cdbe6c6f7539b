"""Reports of the measurements of runs, finished or not: tables, plots and HTML pages."""
