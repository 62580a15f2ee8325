"""A shop: a web application that makes thumbnails and sends mail in the background."""
