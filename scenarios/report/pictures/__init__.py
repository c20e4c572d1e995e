"""Pictures for documents, drawn with matplotlib."""
