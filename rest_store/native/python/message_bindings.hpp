#pragma once

#include <nanobind/nanobind.h>

// Adds the plain messages of a service to the module.
void bind_messages(nanobind::module_& module);
