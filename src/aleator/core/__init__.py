"""What everything else stands on: errors, parameter declarations, random numbers."""
