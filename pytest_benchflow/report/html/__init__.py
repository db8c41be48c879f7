"""Write a job as one HTML file that people read in a browser, without a network."""
