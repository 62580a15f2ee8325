"""The screens of `horsies top`. Everything here needs the extra `tui`; only the command imports it, when it is run."""
