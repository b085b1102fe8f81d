"""Classes and objects that a forward reads."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import inspect
import operator

from tests.soundness.state_kinds.registry import kind, setter


@kind
def class_attribute_of_config_object():
    class Config:
        scale = 1.0

    config = Config()
    return lambda x: x * config.scale, setter(Config, "scale")


@kind
def class_attribute_of_base_class():
    class Base:
        scale = 1.0

    class Config(Base):
        pass

    config = Config()
    return lambda x: x * config.scale, setter(Base, "scale")


@kind
def class_attribute_given_to_derived_class():
    class Base:
        scale = 1.0

    class Config(Base):
        pass

    config = Config()

    def change(number):
        if "scale" in vars(Config) and number < 2:
            del Config.scale
            Base.scale = number
        else:
            Config.scale = number

    return lambda x: x * config.scale, change


@kind
def nested_class_attribute():
    class Outer:
        class Config:
            scale = 1.0

    outer = Outer()
    return lambda x: x * outer.Config.scale, setter(Outer.Config, "scale")


@kind
def metaclass_attribute():
    class Meta(type):
        scale = 1.0

    class Config(metaclass=Meta):
        pass

    return lambda x: x * Config.scale, setter(Meta, "scale")


@kind
def metaclass_property():
    class Meta(type):
        @property
        def scale(cls):
            return cls.hidden

    class Config(metaclass=Meta):
        hidden = 1.0

    return lambda x: x * Config.scale, setter(Config, "hidden")


@kind
def instance_attribute_over_class_attribute():
    class Config:
        scale = 1.0

    config = Config()

    def change(number):
        if "scale" in vars(config) and number < 1:
            del config.scale
        else:
            config.scale = number

    return lambda x: x * config.scale, change


@kind
def property_of_object():
    class Config:
        def __init__(self):
            self.hidden = 1.0

        @property
        def scale(self):
            return self.hidden * 2

    config = Config()
    return lambda x: x * config.scale, setter(config, "hidden")


@kind
def property_replaced():
    class Config:
        scale = property(lambda self: 1.0)

    config = Config()

    def change(number):
        Config.scale = property(lambda self: number)

    return lambda x: x * config.scale, change


@kind
def descriptor():
    class Scale:
        def __init__(self):
            self.number = 1.0

        def __get__(self, owner, kind=None):
            return self.number

    class Config:
        scale = Scale()

    config = Config()
    return lambda x: x * config.scale, setter(vars(Config)["scale"], "number")


@kind
def slots():
    class Config:
        __slots__ = ("scale",)

    config = Config()
    config.scale = 1.0
    return lambda x: x * config.scale, setter(config, "scale")


@kind
def class_of_object_swapped():
    class One:
        scale = 1.0

    class Other:
        scale = 1.0

    config = One()

    def change(number):
        other = Other if type(config) is One else One
        other.scale = number
        config.__class__ = other

    return lambda x: x * config.scale, change


@kind
def bases_of_class_replaced():
    class Base:
        scale = 1.0

    class Config(Base):
        pass

    config = Config()

    def change(number):
        Config.__bases__ = (type("Base", (Base,), {"scale": number}),)

    return lambda x: x * config.scale, change


@kind
def method_of_class_replaced():
    class Config:
        def scale(self):
            return 1.0

    config = Config()

    def change(number):
        Config.scale = lambda self: number

    return lambda x: x * config.scale(), change


@kind
def method_of_object_replaced():
    class Config:
        def scale(self):
            return 1.0

    config = Config()

    def change(number):
        config.scale = lambda: number

    return lambda x: x * config.scale(), change


@kind
def static_method_replaced():
    class Config:
        scale = staticmethod(lambda: 1.0)

    def change(number):
        Config.scale = staticmethod(lambda: number)

    return lambda x: x * Config.scale(), change


@kind
def bound_methods_object():
    class Config:
        number = 1.0

        def scale(self):
            return self.number

    config = Config()
    scale = config.scale
    return lambda x: x * scale(), setter(config, "number")


@kind
def special_method_replaced():
    class Config:
        def __getitem__(self, key):
            return 1.0

    config = Config()

    def change(number):
        Config.__getitem__ = lambda self, key: number

    return lambda x: x * config["any"], change


@kind
def missing_attribute_given_by_class():
    class Config:
        pass

    config = Config()

    def change(number):
        if number < 1 and hasattr(Config, "scale"):
            del Config.scale
        else:
            Config.scale = number

    return lambda x: x * config.scale if hasattr(config, "scale") else x - 1, change


@kind
def attribute_hook_of_class():
    class Config:
        pass

    config = Config()

    def change(number):
        Config.__getattr__ = lambda self, name: number

    return lambda x: x * getattr(config, "scale", 1.0), change


@kind
def name_computed_by_getattr():
    class Config:
        scale_a = 1.0

    config, names = Config(), ["scale", "a"]
    return lambda x: x * getattr(config, "_".join(names)), setter(Config, "scale_a")


@kind
def attrgetter_of_computed_name():
    class Config:
        scale_b = 1.0

    config = Config()
    get = operator.attrgetter("scale" + "_b")
    return lambda x: x * get(config), setter(Config, "scale_b")


@kind
def class_dict_by_computed_key():
    class Config:
        scale_c = 1.0

    names = ["scale", "c"]
    return lambda x: x * vars(Config)["_".join(names)], setter(Config, "scale_c")


@kind
def class_attribute_in_a_template():
    class Config:
        scale_d = 1.0

    config, template = Config(), "{0.scale" + "_d}"
    return lambda x: x * float(template.format(config)), setter(Config, "scale_d")


@kind
def class_attribute_by_getattribute():
    class Config:
        scale_e = 1.0

    config, names = Config(), ["scale", "e"]
    return lambda x: x * config.__getattribute__("_".join(names)), setter(Config, "scale_e")


@kind
def dict_of_an_objects_class_by_computed_key():
    class Config:
        scale_f = 1.0

    config, names = Config(), ["scale", "f"]
    return lambda x: x * type(config).__dict__["_".join(names)], setter(Config, "scale_f")


@kind
def class_attribute_by_getattr_static():
    class Config:
        scale_g = 1.0

    config, names = Config(), ["scale", "g"]
    return lambda x: x * inspect.getattr_static(config, "_".join(names)), setter(Config, "scale_g")


@kind
def enumeration_member():
    class Color(enum.Enum):
        RED = 1.0

    return lambda x: x * Color.RED.value, lambda number: setattr(Color.RED, "_value_", number)


@kind
def data_class_field():
    @dataclasses.dataclass
    class Config:
        scale: float = 1.0

    config = Config()
    return lambda x: x * config.scale, setter(config, "scale")


@kind
def data_classs_default():
    @dataclasses.dataclass
    class Config:
        scale: float = 1.0

    return lambda x: x * Config().scale, lambda number: setattr(Config.__init__, "__defaults__", (number,))


@kind
def class_registered_with_abstract_one():
    class Abstract(abc.ABC):  # noqa: B024 - registered classes are all it is for
        pass

    held = [object()]

    def change(number):
        held[0] = type("Held", (), {})()
        if number > 1:
            Abstract.register(type(held[0]))

    return lambda x: x * (2.0 if isinstance(held[0], Abstract) else 1.0), change


@kind
def same_class_registered_with_abstract_one():
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class Held:
        pass

    held = Held()
    return (
        lambda x: x * (2.0 if issubclass(type(held), Abstract) else 1.0),
        lambda _number: Abstract.register(Held),
    )


@kind
def abstract_class_that_a_function_dispatches_on():
    @functools.singledispatch
    def scale(_held):
        return 1.0

    class Abstract(abc.ABC):  # noqa: B024
        pass

    class Held:
        pass

    scale.register(Abstract, lambda _held: 2.0)
    held = Held()
    return lambda x: x * scale(held), lambda _number: Abstract.register(Held)
