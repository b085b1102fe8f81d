"""Kinds of Python state that a model's forward reads, each with a way to change it between two calls.

A kind makes fresh state and returns what forward calls with a tensor, and what changes the state: the number that the
change is to show by, where it shows one.
"""

from tests.soundness.state_kinds import (  # noqa: F401 - each module registers its kinds
    classes,
    containers,
    functions,
    kept,
    library,
    objects_of_c,
    process,
    torch_state,
)
from tests.soundness.state_kinds.registry import KINDS, Change, Read

__all__ = ["KINDS", "MISSED_BY_DYNAMO", "RUN_EAGERLY", "RUN_IN_PARTS", "Change", "Read"]
# What calls for Dynamo, which splits the model.
RUN_IN_PARTS = frozenset({"offset_of_tensor_in_storage", "training_of_layer"})
# What no guard sees.
RUN_EAGERLY = frozenset(
    (
        *("lock_that_is_held", "name_of_thread", "recursion_limit", "seed_of_torch", "size_of_cache"),
        *("digest", "computed_name_among_modules", "context_variable", "list_in_context_variable"),
        "module_by_dunder_import",
        "limit_of_csv_fields",
        "copied_context",
        *objects_of_c.OPAQUE,
    )
)
# What Dynamo's guards do not see, whatever the backend.
MISSED_BY_DYNAMO = frozenset(
    (
        *("annotation_of_function", "annotations_that_are_others", "builtin_shadowed", "call_of_layer_class"),
        *(
            "attribute_of_member",
            "attribute_that_a_metaclass_computes",
            "item_of_class",
            "method_of_enumeration",
        ),
        "class_attribute_by_getattr_static",
        *("bounded_cache_that_forgets", "cache_emptied_later", "cache_of_a_method", "list_of_a_cache"),
        *("class_attribute_given_to_derived_class", "division_by_numpy", "global_of_the_library"),
        *("data_classs_default", "environment_variable_by_getenv", "first_attribute_of_function"),
        "globals_of_functions_with_one_code",  # of which it cannot compile one whose globals no module has
        *("forward_of_layer_class_patched", "hook_of_layer", "metaclass_attribute", "nested_list"),
        *("method_of_class_replaced", "new_attribute_of_module", "same_class_registered_with_abstract_one"),
        *("module_that_is_blocked", "whether_a_module_is_there"),
        *("module_of_a_name_replaced", "recursion_limit", "rounding_of_decimals"),
        *("class_dict_by_computed_key", "ordered_dict_moved", "special_method_replaced", "version_of_buffer"),
    )
)
