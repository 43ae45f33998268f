"""Tests of what is wrong with images before they are built."""
