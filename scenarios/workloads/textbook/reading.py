"""From the file of a textbook schedule to its scenario."""

from scenarios.reading.documents.located import located
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.steps.reading import method_of, pipeline_spec, refuse_many_calls, unless_auto
from scenarios.workloads.textbook.schema import DelayScenario
from sim.training.spec.job import DelaySpec, TextbookTraining


def job_of(document: Document, checked: DelayScenario) -> TextbookTraining:
    """Return the job of a checked file. Raises ScenarioError where its keys do not go together."""
    model, pipeline = checked.model, checked.parallel.pipeline
    slices = pipeline.token_slices or 1
    num_passes = (slices if isinstance(slices, int) else len(slices)) * checked.training.num_microbatches
    refuse_many_calls(document, "num_microbatches", pipeline.degree * pipeline.virtual_stages, num_passes)
    method = method_of(checked.training, pipeline.schedule)
    with located(document):
        return TextbookTraining(
            model=DelaySpec(
                forward_s=model.forward,
                backward_input_s=model.backward_input,
                backward_weight_s=model.backward_weight,
                hop_s=model.hop,
                gradient_sync_s=model.gradient_sync,
                auxiliary_s=model.auxiliary,
            ),
            num_microbatches=checked.training.num_microbatches,
            method=method,
            local_update=checked.training.local_update,
            pipeline=pipeline_spec(document, pipeline, pipeline.degree, method, None),
            overlap_gradient_sync=checked.parallel.data.overlap_gradient_sync,
            deferred_sync=unless_auto(checked.parallel.data.deferred_sync),
            seed=checked.seed,
        )
