"""Tests of trained models: settings, evaluation, comparison."""
