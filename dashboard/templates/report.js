// The report in the browser: draws its figures; zoom in one moves the others; one line over all shows where one points.
(function () {
  const CONFIG = {
    displaylogo: false, responsive: true, doubleClick: false, modeBarButtons: [["toImage", "zoom2d", "pan2d"]],
    toImageButtonOptions: { format: "png", scale: 2, filename: "batchscope" },
  };
  const boxes = Array.from(document.querySelectorAll(".plot"));
  const linked = () => boxes.filter((box) => box.classList.contains("shares-x") && box.dataset.drawn);
  const axisOf = (box) => {
    const axis = box.graph._fullLayout && box.graph._fullLayout.xaxis;
    return axis && axis.visible !== false ? axis : null;
  };

  // ---- one zoom ----------------------------------------------------------------------------------------------------

  let moving = false; // our own changes come back as events
  function zoom(from, to, except) {
    moving = true;
    const others = linked().filter((box) => box !== except && axisOf(box));
    Promise.all(others.map((box) => Plotly.relayout(box.graph, { "xaxis.range": [from, to] }))).finally(() => { moving = false; });
  }
  function whole() {
    const first = linked().find(axisOf);
    if (first) zoom(first.whole[0], first.whole[1], null);
  }
  function attach(box) {
    box.graph.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
      if (!moving && from !== undefined && to !== undefined) zoom(Number(from), Number(to), box);
    });
    box.graph.on("plotly_doubleclick", whole);
    box.graph.addEventListener("mousemove", (event) => placeAll(xUnder(box, event)));
    box.graph.addEventListener("mouseleave", () => placeAll(null));
  }

  // ---- one line over all, drawn beside Plotly ----------------------------------------------------------------------

  function xUnder(box, event) {
    const axis = axisOf(box);
    if (!axis) return null;
    const pixel = event.clientX - box.graph.getBoundingClientRect().left - axis._offset;
    return pixel < 0 || pixel > axis._length ? null : axis.p2d(pixel);
  }
  const placeAll = (x) => linked().forEach((box) => place(box, x));
  function place(box, x) {
    const axis = axisOf(box), size = box.graph._fullLayout._size;
    const pixel = x === null || !axis ? NaN : axis.d2p(x);
    const shown = pixel >= 0 && pixel <= axis._length;
    box.line.style.display = shown ? "block" : "none";
    if (!shown) return;
    Object.assign(box.line.style, { left: axis._offset + pixel + "px", top: size.t + "px", height: size.h + "px" });
  }

  // ---- drawing, a figure at a time so that the page can be read meanwhile ------------------------------------------

  function draw(box) {
    const figure = JSON.parse(document.getElementById("figure-" + box.dataset.key).textContent);
    box.graph = box.querySelector(".graph");
    const axis = figure.layout.xaxis;
    box.whole = axis && axis.range && axis.range.slice(); // Plotly writes into its own
    box.line = box.querySelector(".over-line");
    return Plotly.newPlot(box.graph, figure.data, figure.layout, CONFIG).then(() => {
      box.dataset.drawn = "yes";
      if (box.classList.contains("shares-x")) attach(box);
    });
  }
  document.getElementById("whole").addEventListener("click", whole);
  (async function () {
    for (const box of boxes) {
      await draw(box);
      await new Promise((resolve) => setTimeout(resolve));
    }
    document.documentElement.dataset.drawn = "yes";
  })();
})();
