"""Deciding: from what stands to what the Node shall say."""
