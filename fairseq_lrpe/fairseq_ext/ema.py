"""fairseq's exponential moving average of a model (``--store-ema``), with corrections."""

from types import SimpleNamespace

from fairseq.models.ema.ema import EMA


class ExactEMA(EMA):
    """Moving average of a model's parameters and buffers with fairseq's flags ``--ema-...``.

    Every ``--ema-update-freq`` updates, each floating point tensor e of the average becomes d e + (1 − d) p,
    where p is the tensor of the model and d is ``--ema-decay``, or 0 before ``--ema-start-update``. Unlike in
    fairseq:

    - A tensor that has several names, such as tied embeddings, is averaged once, not once for each name.
    - Integer tensors, which have no average, are copied.
    - ``--ema-update-freq`` counts the updates of the whole training, not those since it was resumed.
    - The average keeps the last LayerNorm, which fairseq's decoder removes if a state dict has no version.
    """

    def restore(self, state_dict, build_fp32_params=False):
        super().restore(self.model.state_dict() | state_dict, build_fp32_params)

    def step(self, new_model, updates=None):
        if updates:
            self.update_freq_counter = (updates - 1) % max(1, self.config.ema_update_freq)
        super().step(new_model, updates)

    def _step_internal(self, new_model, updates=None):
        averages = self.fp32_params if self.config.ema_fp32 else self.model.state_dict()
        state = new_model.state_dict()
        addresses = set()
        averaged = {}
        for name, tensor in state.items():
            if not tensor.is_floating_point():
                self.skip_keys.add(name)
            # The other names of a tensor would average it again.
            if averages[name].data_ptr() not in addresses:
                addresses.add(averages[name].data_ptr())
                averaged[name] = tensor
        super()._step_internal(SimpleNamespace(state_dict=lambda: averaged), updates)


def load_checkpoint_with_average(load_checkpoint, self, *args, **kwargs):
    """Loads a checkpoint into a trainer; if it has no average, the average starts from the model.

    fairseq raises a KeyError if the checkpoint has no average.
    """
    flags = self.cfg.ema
    store_ema = flags.store_ema
    flags.store_ema = False
    try:
        state = load_checkpoint(self, *args, **kwargs)
    finally:
        flags.store_ema = store_ema
    if store_ema and state is not None:
        average = self.ema  # created from the model on first access
        if "ema" in state:
            average.restore(state.pop("ema"))
            if flags.ema_fp32:
                average.build_fp32_params(state.pop("ema_fp32_params", None))
    return state
