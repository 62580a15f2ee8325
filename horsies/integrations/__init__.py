"""What ties horsies to other libraries. Each module needs the extra of its name, and nothing here imports it for you."""
