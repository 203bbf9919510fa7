"""Responses from files of other tools."""
