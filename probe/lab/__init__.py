"""The attention lab: what each part of attention is for, shown by hand and measured by taking it away."""
