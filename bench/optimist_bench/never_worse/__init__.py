"""`optimist bench never-worse`: whether there is a load that drafts make slower."""
