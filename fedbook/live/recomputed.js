// Puts the controls of a kernel instead of an explorer's frames, for as long as the kernel is there.
const initialize = async ({model}) => {
  const manager = model.widget_manager, panel = await manager.get_model(model.get("panel").replace("IPY_MODEL_", ""));
  const shown = new Map();
  const mount = async () => {
    if (panel.comm_live === false) return leave();
    for (const figure of document.querySelectorAll(`figure[data-key="${model.get("key")}"]`)) {
      if (shown.has(figure)) continue;
      const place = document.createElement("div"), view = (shown.set(figure, place), await manager.create_view(panel));
      place.className = "fc-recomputed";
      figure.after(place);
      view.luminoWidget.constructor.attach(view.luminoWidget, place);
      figure.style.display = "none";
    }
  };
  const leave = () => {
    for (const [figure, place] of shown) {
      place.remove();
      figure.style.display = "";
    }
    shown.clear();
  };
  addEventListener("fc-explorers", mount);
  panel.on("comm_live_update", mount);
  await mount();
  return () => {
    removeEventListener("fc-explorers", mount);
    leave();
  };
};
export default {initialize};
