# What goes into the Python package beside its own files: the operator library, which finds the
# kernels in itself and torch in the package next to it.
set_target_properties(performer_ops PROPERTIES
  INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/../torch.libs")
install(TARGETS performer_ops LIBRARY DESTINATION performer COMPONENT python)
