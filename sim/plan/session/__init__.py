"""Sessions of changing steps: a policy decides, a builder writes the next plan, a session runs it."""
