"""Parts of charts: their content and their drawing."""
