"""Django: a backend for `django.tasks`, and `manage.py horsies …`.

>>> INSTALLED_APPS = [..., "horsies.integrations.django"]
>>> TASKS = {"default": {"BACKEND": "horsies.integrations.django.backend.HorsiesBackend"}}
"""
