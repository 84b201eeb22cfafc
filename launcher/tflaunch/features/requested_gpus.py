"""GPUs that tasks ask an engine for, as those that they see. Pure."""

from tflaunch.clusterspec.model import Role, Spec
from tflaunch.plan.gpu_shares import trains_on_gpu


def with_gpus(spec: Spec) -> Spec:
    """Return the spec with the GPUs of their resources in roles without `gpus`.

    A number of the container's is for tasks that train. Where any role asks for GPUs, those that do not get none.
    """
    numbers = {role: spec.resources(role).gpu for role in spec.cluster}
    if all(number is None for number in numbers.values()):
        return spec
    roles = dict(spec.roles)
    for role, number in numbers.items():
        settings = roles.get(role) or Role()
        is_meant = "gpu" in settings.resources.model_fields_set or trains_on_gpu(spec.effective_strategy(), role)
        if settings.gpus is None:
            roles[role] = settings.model_copy(update={"gpus": number if number and is_meant else 0})
    return spec.model_copy(update={"roles": roles})
