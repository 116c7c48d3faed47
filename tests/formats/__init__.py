"""Formats of earlier versions, read by this one; and this version's formats, by the rule of earlier readers."""
