"""Questions with a short answer: multiple choice, or a text that is compared as a whole."""
