"""Extensions of fairseq itself: criterion, optimizer, checkpoint loading and patches."""
