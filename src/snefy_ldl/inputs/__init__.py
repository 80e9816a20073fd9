"""What people hold, made into what a network reads: tables with text, gaps and dates; images, texts and graphs."""
