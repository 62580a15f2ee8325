"""Integrations with other libraries. Each module needs the extra of its name and is never imported by horsies itself."""
