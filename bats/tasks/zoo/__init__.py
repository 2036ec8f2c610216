"""Logs of Gymnasium's own small tasks, made by scripted controllers that act with varying skill."""
