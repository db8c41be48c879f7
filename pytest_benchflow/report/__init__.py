"""What people read: terminal lines, JUnit properties, summaries."""
