"""One file per runtime, each behind the protocol of `base.py`. Nothing is timed or recorded here."""
