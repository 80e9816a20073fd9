"""What members must explain: shares, shares with gaps, votes."""
