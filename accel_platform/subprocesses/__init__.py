"""Child processes of the platform: JSON jobs and answers, and their environment."""
