"""The deep learning recommendation model (Naumov et al., 2019) on torch."""
