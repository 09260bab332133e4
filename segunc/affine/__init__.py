"""Normalisation layers that draw: conversion, noise, draws over one network, and the prior."""
