"""Who holds up a job whose calls run on devices: the host runs ahead, and only recorders show what is pending."""
