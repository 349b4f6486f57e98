"""Sections of a page: each is a function from what is known to words, tables and charts."""
