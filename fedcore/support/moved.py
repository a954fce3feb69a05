"""Modules that have moved: until the next version, importing an old name imports the new module with a warning."""

from __future__ import annotations

import importlib
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "engine.rules": "fedcore.engine.layers.table",
    "memory": "fedcore.rows.rows",
    "objective.network": "fedcore.objective.making",
    "algorithms.platform": "fedbook.measures.platform",
    "alt": "fedbook.pictures.alt_text",
    "archives": "fedcore.storage.archives",
    "checkpoint": "fedcore.storage.checkpoint",
    "checks": "fedcore.support.checks",
    "citations": "fedbook.documents.citations",
    "experiments": "fedbook",
    "experiments.batch": "fedbook.results.batch",
    "experiments.benchmarked": "fedbook.show.benchmarked",
    "experiments.building": "fedbook.studies.from_spec",
    "experiments.cells": "fedbook.results.cells",
    "experiments.claims": "fedbook.verdicts.claims",
    "experiments.counting": "fedbook.studies.sizes",
    "experiments.documents": "fedbook.documents",
    "experiments.engine_pictures": "fedbook.show.engine_pictures",
    "experiments.estimate": "fedbook.results.estimate",
    "experiments.export": "fedbook.show.export",
    "experiments.files": "fedbook.studies.user_files",
    "experiments.findings": "fedbook.verdicts.findings",
    "experiments.fingerprint": "fedbook.measures.fingerprint",
    "experiments.judge": "fedbook.verdicts.judge",
    "experiments.local_models": "fedbook.studies.local_models",
    "experiments.noise_free": "fedbook.measures.bias_probe",
    "experiments.overview": "fedbook.verdicts.overview",
    "experiments.paths": "fedbook.measures.mime_ablation",
    "experiments.personal": "fedbook.studies.personal",
    "experiments.probing": "fedbook.studies.probing",
    "experiments.protocol": "fedbook.documents.protocol",
    "experiments.provenance": "fedbook.results.provenance",
    "experiments.specification": "fedbook.studies.specification",
    "experiments.speed": "fedbook.studies.speed",
    "experiments.stored": "fedbook.results.page_cache",
    "experiments.table": "fedbook.documents.definitions",
    "experiments.template": "fedbook.new",
    "experiments.tracing": "fedbook.results.tracing",
    "experiments.training": "fedbook.studies.training",
    "experiments.tuning": "fedbook.studies.tuning",
    "extras": "fedcore.support.extras",
    "flatness": "fedcore.probes.flatness",
    "hooks": "fedcore.algorithms.contract",
    "identity": "fedcore.storage.identity",
    "listing": "fedcore.algorithms.listing",
    "listeners": "fedcore.storage.callbacks",
    "live": "fedbook.live.base",
    "looks": "fedbook.pictures.styles",
    "masks": "fedbook.measures.masks",
    "notebooks": "fedbook.results.notebooks",
    "pages": "fedbook.pages",
    "picture": "fedbook.live.still",
    "playing": "fedbook.live.playground",
    "plots": "fedbook.pictures.plots",
    "progress": "fedcore.support.progress",
    "room": "fedcore.support.memory",
    "submodel_playing": "fedbook.live.submodel_playground",
    "together": "fedcore.sweeping",
    "vector": "fedbook.pictures.svg",
    "widgets": "fedbook.pictures.widgets",
}


def new_name(old: str) -> str | None:
    """The new name of a module of `fedcore`, which moved itself or with its package; None if it is where it was."""
    package, _, name = old.rpartition(".")
    return MOVED.get(old) or (f"{MOVED[package]}.{name}" if package in MOVED else None)


class Moved(MetaPathFinder, Loader):
    """Finds the modules that have moved."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The specification of a module that moved; None for every other."""
        package, _, old = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == "fedcore" and new_name(old) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its new name."""
        new = new_name(spec.name.partition(".")[2])
        warnings.warn(
            f"{spec.name} is now {new}; the old name goes with the next version: write import {new}",
            FutureWarning,
            stacklevel=2,
        )
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the specification of the new name; the module itself is not executed again."""
        module.__spec__ = module.__spec__.loader_state
