const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const axes = layout => Object.keys(layout).filter(key => /^[xy]axis\d*$/.test(key));
function themed(layout) {
  const result = structuredClone(layout);
  result.paper_bgcolor = result.plot_bgcolor = "rgba(0,0,0,0)";
  result.font = {color: css("--text"), size: 13, family: getComputedStyle(document.body).fontFamily};
  result.hoverlabel = {bgcolor: css("--panel"), bordercolor: css("--line"), align: "left",
    font: {color: css("--text"), size: 13}};
  for (const key of axes(result)) {
    Object.assign(result[key], {gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"),
      tickfont: {color: css("--soft"), size: 12}});
    if (result[key].title) result[key].title.font = {color: css("--soft"), size: 12};
  }
  for (const note of result.annotations || []) note.font = {color: css("--soft"), size: 12};
  return result;
}
function draw() {
  for (const [id, chart] of Object.entries(charts))
    Plotly.react(id, chart.data, themed(chart.layout), {responsive: true, displayModeBar: false});
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
