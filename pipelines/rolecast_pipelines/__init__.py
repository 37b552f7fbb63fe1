"""Kubeflow Pipelines around the stages of `rolecast.stages`."""
